"""MONEY -> TEXT. One format per file; leaf line `REPORT = ReportFormat(...)`. Pure: a record in, text out."""
