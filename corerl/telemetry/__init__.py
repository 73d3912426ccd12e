"""What a run says about itself: metrics, timings, progress, status."""
