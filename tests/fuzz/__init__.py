"""Random programs with DataLoader as their oracle: what one loader hands out, the other must."""
