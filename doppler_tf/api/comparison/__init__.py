"""`compare`: methods side by side, and TensorFlow alone beside them."""
