"""Rules on AMP across processes, threads and captures: where the scaler, autocast or the norm is only a part's."""
