"""File formats that several rooms write: XLSX workbooks of activity records."""
