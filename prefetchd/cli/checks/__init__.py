"""Checks what `prefetchd doctor` looks at: one file a subject, each with its findings."""
