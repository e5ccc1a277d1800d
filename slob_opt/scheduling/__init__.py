"""What runs next: the Scheduler, the policies that decide, and the dispatchers that choose a pipeline."""
