"""What commands share: options, inputs, output, exit codes and the progress bar."""
