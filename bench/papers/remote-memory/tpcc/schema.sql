-- The tables of TPC-C (revision 5.11, clause 1.3), with its cardinalities (clause 4.3.3) but fewer items. Strings are
-- fillers of average length. W is the number of warehouses, I that of items.
CREATE TABLE warehouse (w_id int PRIMARY KEY, w_tax numeric, w_ytd numeric, w_filler text) WITH (fillfactor = 10);
CREATE TABLE district (d_w_id int, d_id int, d_tax numeric, d_ytd numeric, d_next_o_id int, d_filler text,
  PRIMARY KEY (d_w_id, d_id)) WITH (fillfactor = 10);
CREATE TABLE customer (c_w_id int, c_d_id int, c_id int, c_last int, c_balance numeric, c_ytd_payment numeric,
  c_payment_cnt int, c_delivery_cnt int, c_data text, PRIMARY KEY (c_w_id, c_d_id, c_id)) WITH (fillfactor = 80);
CREATE TABLE history (h_c_w_id int, h_c_d_id int, h_c_id int, h_d_id int, h_w_id int, h_amount numeric, h_date timestamp);
CREATE TABLE orders (o_w_id int, o_d_id int, o_id int, o_c_id int, o_carrier_id int, o_ol_cnt int, o_entry_d timestamp,
  PRIMARY KEY (o_w_id, o_d_id, o_id)) WITH (fillfactor = 80);
CREATE TABLE new_order (no_w_id int, no_d_id int, no_o_id int, PRIMARY KEY (no_w_id, no_d_id, no_o_id));
CREATE TABLE order_line (ol_w_id int, ol_d_id int, ol_o_id int, ol_number int, ol_i_id int, ol_quantity int, ol_amount numeric,
  ol_delivery_d timestamp, ol_dist_info text, PRIMARY KEY (ol_w_id, ol_d_id, ol_o_id, ol_number)) WITH (fillfactor = 80);
CREATE TABLE item (i_id int PRIMARY KEY, i_price numeric, i_data text);
CREATE TABLE stock (s_w_id int, s_i_id int, s_quantity int, s_ytd int, s_order_cnt int, s_data text,
  PRIMARY KEY (s_w_id, s_i_id)) WITH (fillfactor = 80);

INSERT INTO item SELECT i, 1 + i % 100, lpad(i::text, 50, 'i') FROM generate_series(1, :I) AS i;
INSERT INTO warehouse SELECT w, 0.1, 300000, lpad('', 70, 'w') FROM generate_series(1, :W) AS w;
INSERT INTO district SELECT w, d, 0.1, 30000, 3001, lpad('', 70, 'd') FROM generate_series(1, :W) AS w, generate_series(1, 10) AS d;
INSERT INTO customer SELECT w, d, c, c % 1000, -10, 10, 1, 0, lpad(c::text, 500, 'c')
  FROM generate_series(1, :W) AS w, generate_series(1, 10) AS d, generate_series(1, 3000) AS c;
INSERT INTO stock SELECT w, i, 10 + i % 91, 0, 0, lpad(i::text, 290, 's') FROM generate_series(1, :W) AS w, generate_series(1, :I) AS i;
INSERT INTO orders SELECT w, d, o, (o * 1009) % 3000 + 1, CASE WHEN o < 2101 THEN o % 10 + 1 END, 5 + o % 11, now()
  FROM generate_series(1, :W) AS w, generate_series(1, 10) AS d, generate_series(1, 3000) AS o;
INSERT INTO new_order SELECT o_w_id, o_d_id, o_id FROM orders WHERE o_id >= 2101;
INSERT INTO order_line SELECT o_w_id, o_d_id, o_id, n, 1 + (o_id * 15 + n * 7919 + o_d_id * 104729) % :I, 5, 10, o_entry_d, lpad('', 24, 'l')
  FROM orders, generate_series(1, 15) AS n WHERE n <= o_ol_cnt;
CREATE INDEX orders_of_customer ON orders (o_w_id, o_d_id, o_c_id, o_id);
CREATE INDEX customer_by_name ON customer (c_w_id, c_d_id, c_last);

-- NURand of clause 2.1.6.
CREATE FUNCTION nurand(a int, x int, y int) RETURNS int LANGUAGE sql VOLATILE AS
  $$ SELECT (((random() * a)::int | (x + floor(random() * (y - x + 1)))::int) + 42) % (y - x + 1) + x $$;

-- New-Order, clause 2.4, without the 1 % that is rolled back.
CREATE FUNCTION new_order(w int, items int) RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE
  d int := 1 + floor(random() * 10); c int := nurand(1023, 1, 3000); lines int := 5 + floor(random() * 11);
  i int; q int; o int; price numeric; total numeric := 0;
  -- Sorted, so that two transactions cannot deadlock.
  wanted int[] := ARRAY(SELECT DISTINCT nurand(8191, 1, items) AS n FROM generate_series(1, lines) ORDER BY n);
BEGIN
  UPDATE district SET d_next_o_id = d_next_o_id + 1 WHERE d_w_id = w AND d_id = d RETURNING d_next_o_id - 1 INTO o;
  PERFORM c_balance FROM customer WHERE c_w_id = w AND c_d_id = d AND c_id = c;
  INSERT INTO orders VALUES (w, d, o, c, NULL, cardinality(wanted), now());
  INSERT INTO new_order VALUES (w, d, o);
  FOR n IN 1 .. cardinality(wanted) LOOP
    i := wanted[n]; q := 1 + floor(random() * 10);
    SELECT i_price INTO STRICT price FROM item WHERE i_id = i;
    UPDATE stock SET s_quantity = CASE WHEN s_quantity >= q + 10 THEN s_quantity - q ELSE s_quantity - q + 91 END,
      s_ytd = s_ytd + q, s_order_cnt = s_order_cnt + 1 WHERE s_w_id = w AND s_i_id = i;
    INSERT INTO order_line VALUES (w, d, o, n, i, q, q * price, NULL, lpad('', 24, 'l'));
    total := total + q * price;
  END LOOP;
  RETURN total;
END $$;

-- Payment, clause 2.5.
CREATE FUNCTION payment(w int) RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE
  d int := 1 + floor(random() * 10); amount numeric := 1 + floor(random() * 5000); c int := nurand(1023, 1, 3000);
  named int := nurand(255, 0, 999); left_over numeric;
BEGIN
  UPDATE warehouse SET w_ytd = w_ytd + amount WHERE w_id = w;
  UPDATE district SET d_ytd = d_ytd + amount WHERE d_w_id = w AND d_id = d;
  IF random() < 0.6 THEN
    SELECT c_id INTO STRICT c FROM customer WHERE c_w_id = w AND c_d_id = d AND c_last = named ORDER BY c_id OFFSET 1 LIMIT 1;
  END IF;
  UPDATE customer SET c_balance = c_balance - amount, c_ytd_payment = c_ytd_payment + amount, c_payment_cnt = c_payment_cnt + 1
    WHERE c_w_id = w AND c_d_id = d AND c_id = c RETURNING c_balance INTO STRICT left_over;
  INSERT INTO history VALUES (w, d, c, d, w, amount, now());
  RETURN left_over;
END $$;

-- Order-Status, clause 2.6.
CREATE FUNCTION order_status(w int) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  d int := 1 + floor(random() * 10); c int := nurand(1023, 1, 3000); o int;
BEGIN
  PERFORM c_balance FROM customer WHERE c_w_id = w AND c_d_id = d AND c_id = c;
  SELECT o_id INTO o FROM orders WHERE o_w_id = w AND o_d_id = d AND o_c_id = c ORDER BY o_id DESC LIMIT 1;
  RETURN (SELECT count(*) FROM order_line WHERE ol_w_id = w AND ol_d_id = d AND ol_o_id = o);
END $$;

-- Delivery, clause 2.7. It runs at once, although it may be queued.
CREATE FUNCTION delivery(w int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
  o int; c int; total numeric; done int := 0;
BEGIN
  FOR d IN 1 .. 10 LOOP
    DELETE FROM new_order WHERE (no_w_id, no_d_id, no_o_id) =
      (SELECT no_w_id, no_d_id, no_o_id FROM new_order WHERE no_w_id = w AND no_d_id = d ORDER BY no_o_id LIMIT 1 FOR UPDATE)
      RETURNING no_o_id INTO o;
    CONTINUE WHEN o IS NULL;
    UPDATE orders SET o_carrier_id = 1 WHERE o_w_id = w AND o_d_id = d AND o_id = o RETURNING o_c_id INTO c;
    UPDATE order_line SET ol_delivery_d = now() WHERE ol_w_id = w AND ol_d_id = d AND ol_o_id = o;
    SELECT sum(ol_amount) INTO total FROM order_line WHERE ol_w_id = w AND ol_d_id = d AND ol_o_id = o;
    UPDATE customer SET c_balance = c_balance + total, c_delivery_cnt = c_delivery_cnt + 1
      WHERE c_w_id = w AND c_d_id = d AND c_id = c;
    done := done + 1;
  END LOOP;
  RETURN done;
END $$;

-- Stock-Level, clause 2.8.
CREATE FUNCTION stock_level(w int) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  d int := 1 + floor(random() * 10); o int; threshold int := 10 + floor(random() * 11);
BEGIN
  SELECT d_next_o_id INTO o FROM district WHERE d_w_id = w AND d_id = d;
  RETURN (SELECT count(DISTINCT s_i_id) FROM order_line JOIN stock ON s_w_id = w AND s_i_id = ol_i_id AND s_quantity < threshold
    WHERE ol_w_id = w AND ol_d_id = d AND ol_o_id >= o - 20 AND ol_o_id < o);
END $$;
