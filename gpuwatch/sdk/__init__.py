"""What two leaves of one provider share. Knows no leaf."""
