// Two graphs side by side: which parts correspond, and what the others lack.
