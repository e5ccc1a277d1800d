"""What serving was worth: satisfaction, latency, quality of experience, goodput, fairness, load."""
