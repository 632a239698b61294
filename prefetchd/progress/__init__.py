"""Reports where a consumer stands when it says so by other ways than the socket: sources, and how far to trust them."""
