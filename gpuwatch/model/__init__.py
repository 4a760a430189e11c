"""NOUNS. Frozen records, one file per word of the arrow, units in the field names.

In: nothing of gpuwatch but `errors`. Out: records that every room speaks.
A number's name ends in its unit. A field that is not known is `None`; the envelope's `gaps` says why.
Zero is a number, missing is not zero, and missing is never "healthy".
"""
