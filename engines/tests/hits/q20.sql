-- A pattern that few match.
SELECT count(*)
FROM hits
WHERE url LIKE '%google%'
