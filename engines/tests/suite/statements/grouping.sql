-- Aggregates, with and without groups.

SELECT count(*), sum(k), min(k), max(k), avg(k) FROM numbers;
SELECT count(*), sum(id), min(id), max(id), avg(id) FROM numbers;
SELECT sum(small), min(small), max(small), avg(small), sum(g), avg(g), min(g), max(g) FROM numbers;
SELECT min(day), max(day), min(moment), max(moment), min(tag), max(tag), min(note), max(note) FROM numbers;
SELECT count(f), count(g), count(flag), count(tag), count(note), count(seldom) FROM numbers;
SELECT count(DISTINCT k), count(DISTINCT g), count(DISTINCT tag), count(DISTINCT flag), count(DISTINCT day) FROM numbers;
SELECT sum(k + small), sum(k * 2), sum(abs(small)), max(k - small), min(-k) FROM numbers;
SELECT bool_and(flag), bool_or(flag), bool_and(k >= 0), bool_or(k > 5000) FROM numbers;
SELECT sum(k) + 1, sum(k) * 2 - sum(small), max(k) - min(k) FROM numbers;
SELECT CAST(sum(k) AS DOUBLE) / count(*) FROM numbers;
SELECT count(*) + count(g) AS c FROM numbers WHERE k < 10;
SELECT median(small), median(k) FROM numbers WHERE id < 1001;

--! for k: g | tag | flag | small % 5 | k % 10 | k % 2 = 0 | tag IS NULL | length(tag) | g + 1 | coalesce(g, -1) | upper(tag) | extract(year FROM day) | CASE WHEN k < 500 THEN 'low' ELSE 'high' END | substr(tag, 1, 1)
SELECT {k} AS key, count(*), sum(k), min(small), max(id) FROM numbers GROUP BY key;
--! for k: g | tag | flag
SELECT {k}, sum(f), avg(f), avg(k), count(DISTINCT small) FROM numbers GROUP BY {k};
--! for k: g | tag
SELECT {k}, count(*) FILTER (WHERE flag), sum(k) FILTER (WHERE small > 0), min(id) FILTER (WHERE k = 7), max(f) FILTER (WHERE f < 0) FROM numbers GROUP BY {k};
SELECT flag, tag, count(*), sum(k) FROM numbers GROUP BY flag, tag;
SELECT g, flag, count(*), avg(small) FROM numbers GROUP BY g, flag;
SELECT g % 3 AS a, small % 3 AS b, k % 2 AS c, count(*), sum(id) FROM numbers GROUP BY a, b, c;
SELECT tag, g, flag, sum(k) FROM numbers WHERE k < 50 AND g < 4 GROUP BY tag, g, flag;
SELECT tag, length(tag), count(*) FROM numbers GROUP BY tag, length(tag);
SELECT g + small AS key, count(*) FROM numbers WHERE k = 3 GROUP BY g + small;
SELECT 1 AS key, count(*) FROM numbers GROUP BY key;
SELECT tag FROM numbers GROUP BY tag;
SELECT g FROM numbers GROUP BY g ORDER BY g NULLS FIRST;
SELECT sum(k) FROM numbers GROUP BY flag;
SELECT tag, tag || '!' AS loud, count(*) + 1 AS more FROM numbers GROUP BY tag;

-- Many groups.
SELECT count(*), sum(c), max(c), min(c) FROM (SELECT k, count(*) AS c FROM numbers GROUP BY k) AS t;
SELECT count(*), sum(c), max(s) FROM (SELECT k, g, count(*) AS c, sum(small) AS s FROM numbers GROUP BY k, g) AS t;
SELECT count(*), sum(c) FROM (SELECT id, count(*) AS c FROM numbers GROUP BY id) AS t;
SELECT count(*), sum(c) FROM (SELECT note, count(*) AS c FROM numbers GROUP BY note) AS t;
SELECT count(*), max(c), sum(x) FROM (SELECT price, count(*) AS c, sum(f) AS x FROM numbers GROUP BY price) AS t;
SELECT count(*), min(s), max(s) FROM (SELECT day, sum(k) AS s FROM numbers GROUP BY day) AS t;
SELECT count(*), sum(c) FROM (SELECT k, tag, flag, count(*) AS c FROM numbers GROUP BY k, tag, flag) AS t WHERE c > 5;
SELECT k, count(*) AS c, sum(id) FROM numbers GROUP BY k ORDER BY c DESC, k LIMIT 5;
SELECT k, sum(f) AS s FROM numbers GROUP BY k ORDER BY s DESC, k LIMIT 5;
SELECT note, min(id) FROM numbers GROUP BY note ORDER BY note DESC NULLS LAST LIMIT 4;
SELECT day, count(*), sum(price) FROM numbers GROUP BY day ORDER BY day LIMIT 5;
SELECT id, sum(k) FROM numbers GROUP BY id ORDER BY id DESC LIMIT 3;

-- Aggregates after a filter.
--! for f: k < 100 | k = 7 | id BETWEEN 65530 AND 65540 | tag = 'red' | flag AND k > 900 | g IS NULL | f > 4000 | day = DATE '2020-02-29' | id < 0
SELECT g, count(*), sum(k), min(tag) FROM numbers WHERE {f} GROUP BY g;
--! for f: id < 0 | false | tag = 'plaid'
SELECT count(*), sum(k), avg(k), min(tag), count(DISTINCT g), bool_or(flag) FROM numbers WHERE {f};

-- HAVING.
--! for h: count(*) > 25000 | sum(k) > 10000000 | min(small) = -50 | avg(k) > 500 | count(DISTINCT g) = 17 | tag > 'c' | count(*) > 100000 | count(*) > 20000 AND max(k) = 999 | sum(small) < 0 OR tag IS NULL
SELECT tag, count(*) FROM numbers GROUP BY tag HAVING {h};
SELECT k FROM numbers GROUP BY k HAVING count(*) > 205 ORDER BY k;
SELECT count(*) FROM numbers HAVING count(*) > 5;
SELECT count(*) FROM numbers HAVING count(*) < 5;
SELECT flag, sum(k) AS s FROM numbers GROUP BY flag HAVING sum(k) > 1000 ORDER BY s;

-- DISTINCT inside of aggregates.
SELECT count(DISTINCT k), sum(DISTINCT k), count(*) FROM numbers;
SELECT tag, count(DISTINCT k), count(DISTINCT g), count(*) FROM numbers GROUP BY tag;
SELECT g, sum(DISTINCT small), count(DISTINCT tag) FROM numbers GROUP BY g;
SELECT count(DISTINCT note), count(DISTINCT price), count(DISTINCT f) FROM numbers;
SELECT count(DISTINCT k % 7), count(DISTINCT length(note)) FROM numbers WHERE flag;
SELECT count(DISTINCT seldom), sum(DISTINCT seldom) FROM numbers;
SELECT flag, count(DISTINCT day) FROM numbers WHERE id < 20000 GROUP BY flag;
SELECT count(DISTINCT k) FILTER (WHERE flag), count(DISTINCT k) FILTER (WHERE k > 990) FROM numbers;

-- Several levels of groups.
--! for by: ROLLUP (tag, flag) | CUBE (flag, g % 2) | GROUPING SETS ((tag), (flag), ())
SELECT count(*), sum(k), min(id) FROM numbers GROUP BY {by};
SELECT tag, flag, count(*) FROM numbers WHERE g = 1 GROUP BY ROLLUP (tag, flag);
SELECT max(c), min(c) FROM (SELECT tag, count(*) AS c FROM numbers GROUP BY tag) AS t;
SELECT c, count(*) FROM (SELECT k, count(*) AS c FROM numbers GROUP BY k) AS t GROUP BY c;
SELECT flag, max(s) FROM (SELECT flag, tag, sum(k) AS s FROM numbers GROUP BY flag, tag) AS t GROUP BY flag;

-- Tables without rows and with one.
SELECT count(*), sum(a), avg(a), min(a), max(t), sum(x), sum(d), count(DISTINCT a) FROM nothing;
SELECT a, count(*) FROM nothing GROUP BY a;
SELECT t, sum(a) FROM nothing GROUP BY t HAVING sum(a) > 0;
SELECT count(*), sum(a), min(t), sum(missing), count(missing) FROM single;
SELECT t, count(*), sum(missing) FROM single GROUP BY t;

-- Small tables.
SELECT city, count(*), sum(credit), min(name) FROM customers GROUP BY city;
SELECT segment, city, count(*) FROM customers WHERE city < 'M' GROUP BY segment, city;
SELECT category, count(*), min(price), max(price), sum(price) FROM products GROUP BY category;
SELECT extract(month FROM day) AS m, count(*), sum(quantity), sum(amount) FROM sales GROUP BY m ORDER BY m;
SELECT customer, sum(amount) AS s FROM sales GROUP BY customer ORDER BY s DESC, customer LIMIT 6;
SELECT string_agg(name, ',' ORDER BY name DESC) FROM products WHERE category = 'toy';
SELECT category, string_agg(name, ' ' ORDER BY id) FROM products WHERE id < 20 GROUP BY category;
