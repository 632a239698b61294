"""The daemon's configuration, from TOML text to plain data."""
