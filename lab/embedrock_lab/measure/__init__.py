"""What every measurement needs: the machine's facts, rounds that notice noise, rows to verify."""
