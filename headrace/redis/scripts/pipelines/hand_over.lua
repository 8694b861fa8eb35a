-- Make the stored result of one job that of another, whose record does not name it yet. KEYS: none.
-- ARGV: 1 the old entry of the payload index, 2 the new entry. It can be repeated. Returns {1}.
redis.call('ZADD', PAYLOADS, whole(NOW_US + 600000000), ARGV[2])
redis.call('ZREM', PAYLOADS, ARGV[1])
return {1}
