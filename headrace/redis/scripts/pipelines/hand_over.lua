-- Let a payload that is the result of one job be that of another, whose record does not name it yet. KEYS: none.
-- ARGV: 1 the entry as it was, 2 as it is to be. Said twice, it is the same. Returns {1}.
redis.call('ZADD', PAYLOADS, whole(NOW_US + 600000000), ARGV[2])
redis.call('ZREM', PAYLOADS, ARGV[1])
return {1}
