"""One stream: what is claimed, filled, offered, leased and kept."""
