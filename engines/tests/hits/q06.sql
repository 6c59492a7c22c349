-- Distinct texts, many.
SELECT count(DISTINCT search_phrase) AS c
FROM hits
