"""Holds units for systemd, as data; `prefetchd systemd install` writes them. Decision 0080 says why they are here."""
