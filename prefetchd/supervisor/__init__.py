"""Processes as the daemon holds them: started, watched, ended. Imports no torch."""
