-- Distinct users of each search phrase.
SELECT search_phrase, count(DISTINCT user_id) AS u
FROM hits
WHERE search_phrase <> ''
GROUP BY search_phrase
ORDER BY u DESC, search_phrase
LIMIT 10
