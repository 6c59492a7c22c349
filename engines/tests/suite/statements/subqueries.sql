-- Subqueries: scalar, correlated, EXISTS, IN and NOT IN with NULLs.

SELECT (SELECT max(k) FROM numbers) AS m, (SELECT count(*) FROM products) AS c;
SELECT (SELECT a FROM single) AS a, (SELECT a FROM nothing) AS b, (SELECT max(a) FROM nothing) AS c, (SELECT count(*) FROM nothing) AS d;
SELECT id, price - (SELECT min(price) FROM products) AS over FROM products WHERE id < 5 ORDER BY id;
SELECT count(*) FROM products WHERE price > (SELECT avg(CAST(price AS DOUBLE)) FROM products);
SELECT id FROM products WHERE price = (SELECT max(price) FROM products);
SELECT count(*), sum(id) FROM numbers WHERE k > (SELECT max(id) FROM customers);
SELECT count(*) FROM numbers WHERE k = (SELECT a FROM single);
SELECT count(*) FROM numbers WHERE k = (SELECT a FROM nothing);
SELECT count(*) FROM numbers WHERE f > (SELECT avg(f) FROM numbers WHERE f > 0);
SELECT id, k FROM numbers WHERE id = (SELECT max(id) FROM numbers WHERE k = 7);
SELECT tag, count(*) FROM numbers GROUP BY tag HAVING count(*) > (SELECT count(*) FROM numbers WHERE tag = 'cyan');

-- Correlated subqueries.
SELECT c.id, (SELECT count(*) FROM sales AS s WHERE s.customer = c.id) AS n FROM customers AS c WHERE c.id < 12 ORDER BY c.id;
SELECT c.id, (SELECT sum(s.amount) FROM sales AS s WHERE s.customer = c.id) AS n FROM customers AS c WHERE c.id BETWEEN 490 AND 500 ORDER BY c.id;
SELECT count(*) FROM sales AS s WHERE s.amount > (SELECT avg(CAST(o.amount AS DOUBLE)) FROM sales AS o WHERE o.product = s.product);
SELECT s.id, s.amount FROM sales AS s WHERE s.amount = (SELECT max(o.amount) FROM sales AS o WHERE o.customer = s.customer) AND s.customer < 8 ORDER BY s.id;
SELECT p.id, p.price FROM products AS p WHERE p.price = (SELECT min(o.price) FROM products AS o WHERE o.category = p.category) ORDER BY p.id;
SELECT count(*) FROM numbers AS n WHERE n.id < 5000 AND n.k > (SELECT avg(m.k) FROM numbers AS m WHERE m.g = n.g AND m.id < 5000);
SELECT p.id, (SELECT count(*) FROM numbers AS n WHERE n.k = p.id AND n.flag) AS c FROM products AS p WHERE p.id < 8 ORDER BY p.id;

-- EXISTS.
SELECT count(*) FROM customers AS c WHERE EXISTS (SELECT 1 FROM sales AS s WHERE s.customer = c.id AND s.quantity > 8);
SELECT count(*) FROM customers AS c WHERE NOT EXISTS (SELECT 1 FROM sales AS s WHERE s.customer = c.id AND s.quantity > 8);
SELECT count(*) FROM customers AS c WHERE EXISTS (SELECT 1 FROM sales AS s WHERE s.customer = c.id) AND NOT EXISTS (SELECT 1 FROM customers AS d WHERE d.parent = c.id);
SELECT count(*) FROM customers AS c WHERE EXISTS (SELECT 1 FROM sales AS s JOIN products AS p ON s.product = p.id WHERE s.customer = c.id AND p.category = 'toy');
SELECT count(*) FROM customers WHERE EXISTS (SELECT 1 FROM nothing);
SELECT count(*) FROM customers WHERE NOT EXISTS (SELECT 1 FROM nothing);
SELECT count(*) FROM customers WHERE EXISTS (SELECT 1 FROM single WHERE a = 42);
SELECT count(*), sum(n.k) FROM numbers AS n WHERE EXISTS (SELECT 1 FROM products AS p WHERE p.id = n.k AND p.price > 20);
SELECT count(*), sum(n.k) FROM numbers AS n WHERE NOT EXISTS (SELECT 1 FROM products AS p WHERE p.id = n.k AND p.price > 20);
SELECT count(*) FROM sales AS s WHERE EXISTS (SELECT 1 FROM sales AS o WHERE o.customer = s.customer AND o.product = s.product AND o.id <> s.id);

-- IN and NOT IN. If one of the values is NULL, NOT IN is never true.
SELECT count(*) FROM customers WHERE id IN (SELECT customer FROM sales WHERE amount > 2000);
SELECT count(*) FROM customers WHERE id NOT IN (SELECT customer FROM sales WHERE amount > 2000 AND customer IS NOT NULL);
SELECT count(*) FROM customers WHERE id NOT IN (SELECT customer FROM sales);
SELECT count(*) FROM customers WHERE parent IN (SELECT id FROM customers WHERE city = 'Oslo');
SELECT count(*) FROM customers WHERE parent NOT IN (SELECT id FROM customers WHERE city = 'Oslo');
SELECT count(*) FROM customers WHERE id IN (SELECT a FROM nothing);
SELECT count(*) FROM customers WHERE id NOT IN (SELECT a FROM nothing);
SELECT count(*) FROM customers WHERE parent NOT IN (SELECT a FROM nothing);
SELECT count(*) FROM logic WHERE a IN (SELECT b FROM logic WHERE b > 0);
SELECT count(*) FROM logic WHERE a NOT IN (SELECT b FROM logic WHERE b > 0);
SELECT count(*) FROM logic WHERE a NOT IN (SELECT b FROM logic WHERE b > 0 OR b IS NULL);
SELECT count(*) FROM logic WHERE a NOT IN (SELECT never FROM logic);
SELECT count(*) FROM numbers WHERE k IN (SELECT id FROM customers WHERE city = 'Cairo');
SELECT count(*) FROM numbers WHERE tag IN (SELECT tag FROM numbers WHERE id < 3);
SELECT count(*) FROM numbers WHERE g IN (SELECT a FROM logic WHERE a IS NOT NULL) AND k < 500;
SELECT count(*) FROM numbers WHERE k IN (SELECT product FROM sales WHERE customer IN (SELECT id FROM customers WHERE segment = 'trade'));
SELECT count(*) FROM sales WHERE product IN (SELECT id FROM products WHERE category = 'book') OR quantity = 9;

-- Tables that are queries.
SELECT count(*), sum(c) FROM (SELECT customer, count(*) AS c FROM sales GROUP BY customer) AS t WHERE c > 10;
SELECT t.city, max(t.s) FROM (SELECT c.city, c.id, sum(s.amount) AS s FROM customers AS c JOIN sales AS s ON s.customer = c.id GROUP BY c.city, c.id) AS t GROUP BY t.city;
SELECT a.g, a.c, b.c FROM (SELECT g, count(*) AS c FROM numbers WHERE flag GROUP BY g) AS a JOIN (SELECT g, count(*) AS c FROM numbers WHERE NOT flag GROUP BY g) AS b ON a.g = b.g;
SELECT x.k, x.s FROM (SELECT k, sum(small) AS s FROM numbers GROUP BY k) AS x ORDER BY x.s DESC, x.k LIMIT 5;
--! error
SELECT (SELECT id, name FROM products) FROM single;
--! error
SELECT id FROM products WHERE price > (SELECT price FROM products);
