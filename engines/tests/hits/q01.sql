-- How many.
SELECT count(*)
FROM hits
