"""An older place of `send_intermediate_predict_response`."""
