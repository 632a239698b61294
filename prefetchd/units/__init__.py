"""Holds units for systemd, as data; `prefetchd systemd install` writes them."""
