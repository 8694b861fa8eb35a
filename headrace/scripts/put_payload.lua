-- Note a payload before it is written anywhere, so that the sweep knows of it; one that is to lie in Redis is written
-- in the same call. KEYS: none. ARGV: 1 entry ("reference id model i|r"), 2 reference, 3 us until it is looked at,
-- 4 the most bytes that payloads may take in Redis ('' = a result: it ends a job, and passes also at maxmemory),
-- 5 and only where it is to lie in Redis: the payload. Returns {1 or 0 (refused: too much), bytes of all in Redis}.
local entry, ref, limit, body = ARGV[1], ARGV[2], ARGV[4], ARGV[5]
redis.call('ZCARD', PAYLOADS)
local total = tonumber(redis.call('HGET', PAYLOAD_SIZES, '') or '0') or 0
if body and limit ~= '' and total + #body > tonumber(limit) then return {0, whole(total)} end
-- Said again after a broken connection.
local again = body and redis.call('HEXISTS', PAYLOAD_SIZES, ref) == 1
if limit == '' then pass_at_maxmemory(PAYLOADS) end
local noted = redis.pcall('ZADD', PAYLOADS, whole(NOW_US + tonumber(ARGV[3])), entry)
if type(noted) == 'table' then
  -- Refused before anything was written; see submit.lua.
  if string.find(noted.err, 'OOM', 1, true) then noted.err = "OOM command not allowed when used memory > 'maxmemory'." end
  return redis.error_reply(noted.err)
end
if body then
  redis.call('SET', PAYLOAD .. string.match(ref, ':(.*)'), body)
  if not again then
    redis.call('HSET', PAYLOAD_SIZES, ref, #body)
    total = redis.call('HINCRBY', PAYLOAD_SIZES, '', #body)
  end
end
return {1, whole(total)}
