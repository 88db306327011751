"""What is asked of a simulated deployment: generated conversations, or recorded traces."""
