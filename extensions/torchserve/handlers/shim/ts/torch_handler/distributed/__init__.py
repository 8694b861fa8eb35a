"""Base handlers of models that are split over devices."""
