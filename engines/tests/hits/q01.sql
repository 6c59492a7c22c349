-- Number of rows.
SELECT count(*)
FROM hits
