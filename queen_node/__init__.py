"""A durable message broker whose speciality is timers."""
