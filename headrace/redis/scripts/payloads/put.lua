-- Enter a payload into the index before it is written anywhere, so that the sweep knows it. A payload in Redis is also
-- counted, and written in the same call. KEYS: none.
-- ARGV: 1 entry ("reference id model i|r|f"), 2 reference, 3 us until the sweep looks at it, 4 how many bytes of payloads
--       Redis may hold ('' for a result: it ends a job, and passes at maxmemory too), 5 its bytes in Redis (0: it is stored
--       elsewhere), 6 the payload; absent if the caller writes it, as Lua would copy it.
-- Returns {1 or 0 (refused: no room), bytes of all payloads in Redis}.
local entry, ref, limit, size, body = ARGV[1], ARGV[2], ARGV[4], tonumber(ARGV[5]), ARGV[6]
redis.call('ZCARD', PAYLOADS)
local total = tonumber(redis.call('HGET', PAYLOAD_SIZES, '') or '0') or 0
-- A repeat, after a broken connection or with the payload.
local again = size > 0 and redis.call('HEXISTS', PAYLOAD_SIZES, ref) == 1
if size > 0 and not again and limit ~= '' and total + size > tonumber(limit) then return {0, whole(total)} end
if limit == '' then begin_with_removal(PAYLOADS) end
local noted = redis.pcall('ZADD', PAYLOADS, whole(NOW_US + tonumber(ARGV[3])), entry)
if type(noted) == 'table' then
  -- Refused before anything was written; see jobs/submit.lua.
  if string.find(noted.err, 'OOM', 1, true) then noted.err = "OOM command not allowed when used memory > 'maxmemory'." end
  return redis.error_reply(noted.err)
end
if body then redis.call('SET', PAYLOAD .. string.match(ref, ':(.*)'), body) end
if size > 0 and not again then
  redis.call('HSET', PAYLOAD_SIZES, ref, size)
  total = redis.call('HINCRBY', PAYLOAD_SIZES, '', size)
end
return {1, whole(total)}
