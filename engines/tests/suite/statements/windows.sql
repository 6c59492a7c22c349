-- Windows: ranks, neighbours, running sums and frames.

SELECT id, row_number() OVER (ORDER BY id DESC) FROM products WHERE id < 6 ORDER BY id;
SELECT id, category, row_number() OVER (PARTITION BY category ORDER BY price DESC) FROM products WHERE id < 14 ORDER BY id;
SELECT a, b, rank() OVER (ORDER BY a NULLS LAST), dense_rank() OVER (ORDER BY a NULLS LAST) FROM logic WHERE id % 3 = 0 ORDER BY a NULLS LAST, b NULLS LAST;
SELECT id, rank() OVER (PARTITION BY a ORDER BY b NULLS FIRST) FROM logic ORDER BY id;
SELECT id, percent_rank() OVER (ORDER BY id), cume_dist() OVER (ORDER BY id), ntile(3) OVER (ORDER BY id) FROM products WHERE id <= 8 ORDER BY id;
SELECT id, lag(price) OVER (ORDER BY id), lead(price) OVER (ORDER BY id) FROM products WHERE id < 8 ORDER BY id;
SELECT id, lag(id, 2) OVER (ORDER BY id), lead(id, 3, -1) OVER (ORDER BY id) FROM products WHERE id < 8 ORDER BY id;
SELECT id, lag(b) OVER (PARTITION BY a ORDER BY id) FROM logic ORDER BY id;
SELECT id, first_value(price) OVER (PARTITION BY category ORDER BY id), last_value(price) OVER (PARTITION BY category ORDER BY id) FROM products WHERE id < 12 ORDER BY id;
SELECT id, nth_value(id, 2) OVER (ORDER BY id) FROM products WHERE id < 6 ORDER BY id;
SELECT id, sum(a) OVER (), count(*) OVER (), max(b) OVER () FROM logic WHERE id < 10 ORDER BY id;
SELECT id, sum(b) OVER (ORDER BY id), avg(b) OVER (ORDER BY id), count(b) OVER (ORDER BY id) FROM logic WHERE id < 16 ORDER BY id;
SELECT id, sum(b) OVER (PARTITION BY a ORDER BY id) FROM logic ORDER BY id;
SELECT id, sum(b) OVER (PARTITION BY a) FROM logic WHERE id < 20 ORDER BY id;
SELECT id, a, sum(id) OVER (ORDER BY a NULLS FIRST) FROM logic WHERE id % 4 = 1 ORDER BY id;

--! for frame: ROWS BETWEEN 2 PRECEDING AND CURRENT ROW | ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING | ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING | ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING | ROWS BETWEEN 3 PRECEDING AND 1 PRECEDING | ROWS BETWEEN 1 FOLLOWING AND 2 FOLLOWING | ROWS UNBOUNDED PRECEDING | RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW | RANGE BETWEEN 2 PRECEDING AND 2 FOLLOWING
SELECT id, sum(price) OVER (ORDER BY id {frame}), min(id) OVER (ORDER BY id {frame}), count(*) OVER (ORDER BY id {frame}) FROM products WHERE id < 10 ORDER BY id;
SELECT id, b, sum(id) OVER (ORDER BY b RANGE BETWEEN 1 PRECEDING AND CURRENT ROW) FROM logic WHERE b IS NOT NULL AND id < 16 ORDER BY id;
SELECT id, quantity, count(*) OVER (ORDER BY quantity RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) FROM sales WHERE id < 30 AND quantity IS NOT NULL ORDER BY id;
SELECT id, sum(price) OVER w, avg(CAST(id AS DOUBLE)) OVER w FROM products WHERE id < 6 WINDOW w AS (ORDER BY id) ORDER BY id;

-- A window over groups, and a filter behind a window.
SELECT tag, count(*) AS c, rank() OVER (ORDER BY count(*) DESC) AS r FROM numbers GROUP BY tag ORDER BY r;
SELECT g, sum(k), sum(sum(k)) OVER (ORDER BY g NULLS LAST) FROM numbers GROUP BY g ORDER BY g NULLS LAST;
SELECT m, s, s - lag(s) OVER (ORDER BY m) AS change FROM (SELECT extract(month FROM day) AS m, sum(amount) AS s FROM sales GROUP BY m) AS t ORDER BY m;
SELECT tag, id, k FROM (SELECT tag, id, k, row_number() OVER (PARTITION BY tag ORDER BY k DESC, id) AS r FROM numbers) AS t WHERE r <= 2 ORDER BY tag NULLS LAST, r;
SELECT g, id FROM (SELECT g, id, row_number() OVER (PARTITION BY g ORDER BY f DESC NULLS LAST, id) AS r FROM numbers WHERE flag) AS t WHERE r = 1 ORDER BY g NULLS FIRST;
SELECT count(*), sum(x), max(x) FROM (SELECT sum(small) OVER (ORDER BY id) AS x FROM numbers) AS t;
SELECT count(*), sum(x) FROM (SELECT lag(k, 1, 0) OVER (ORDER BY id) AS x FROM numbers) AS t;
SELECT count(*), sum(x) FROM (SELECT rank() OVER (ORDER BY k) AS x FROM numbers) AS t;
SELECT count(*), sum(x), min(x), max(x) FROM (SELECT dense_rank() OVER (PARTITION BY tag ORDER BY k) AS x FROM numbers) AS t;
SELECT count(*), sum(x) FROM (SELECT k - lag(k) OVER (PARTITION BY g ORDER BY id) AS x FROM numbers) AS t;
SELECT sum(x) FROM (SELECT avg(small) OVER (ORDER BY id ROWS BETWEEN 3 PRECEDING AND CURRENT ROW) AS x FROM numbers WHERE id > 3 AND id < 4004) AS t;
SELECT id, k, ntile(4) OVER (ORDER BY k, id) AS quarter FROM numbers WHERE id % 25000 = 0 ORDER BY id;
SELECT id, count(*) FILTER (WHERE flag) OVER (ORDER BY id) FROM numbers WHERE id < 8 ORDER BY id;
SELECT id, sum(amount) OVER (PARTITION BY customer ORDER BY day, id) FROM sales WHERE customer < 4 ORDER BY id LIMIT 20;
SELECT a, row_number() OVER (ORDER BY a) FROM nothing;
SELECT a, rank() OVER (ORDER BY a), sum(missing) OVER () FROM single;
SELECT id, sum(f) OVER (ORDER BY id) FROM numbers WHERE id BETWEEN 65530 AND 65540 ORDER BY id;
SELECT id, max(tag) OVER (ORDER BY id ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) FROM numbers WHERE id < 10 ORDER BY id;
SELECT id, k FROM numbers WHERE id < 5000 QUALIFY row_number() OVER (PARTITION BY flag ORDER BY k DESC, id) = 1 ORDER BY id;
--! error
SELECT row_number() OVER (ORDER BY id) FROM products WHERE row_number() OVER (ORDER BY id) < 3;
