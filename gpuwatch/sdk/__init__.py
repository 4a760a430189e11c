"""What two leaves of one provider share, and forms of the outside world that several rooms read. Knows no leaf."""
