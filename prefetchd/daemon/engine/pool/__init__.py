"""The processes of all streams: which worker gets which task, which host and planner is started."""
