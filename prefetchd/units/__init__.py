"""Units for systemd, as data; `prefetchd systemd install` writes them."""
