-- Groups by a part of a text.
SELECT regexp_replace(referer, '^https?://(?:www\.)?([^/]+)/.*$', '\1') AS k, avg(length(referer)) AS l, count(*) AS c, min(referer) AS first
FROM hits
WHERE referer <> ''
GROUP BY k
HAVING count(*) > 50
ORDER BY c DESC, k
LIMIT 25
