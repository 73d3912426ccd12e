"""What flows through a step: rollouts, and the padded tensors that training sees."""
