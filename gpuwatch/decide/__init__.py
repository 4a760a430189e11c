"""PLAN-time thought: EVIDENCE -> VERDICT -> PLAN. Pure: values in, values out, no clock, no log."""
