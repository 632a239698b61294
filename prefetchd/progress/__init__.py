"""Where a consumer stands, when it is told by other ways than the socket: sources, and how to trust what they say."""
