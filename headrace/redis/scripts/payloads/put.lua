-- @include payload_sizes
-- Enter a payload into the index before it is written anywhere, so that the sweep knows it, and count its bytes. A
-- payload in Redis is also written in the same call. KEYS: none.
-- ARGV: 1 entry ("reference id model i|r|f"), 2 reference, 3 us until the sweep looks at it, 4 how many bytes of payloads
--       Redis may hold ('' for a result: it ends a job, and passes at maxmemory too), 5 its bytes, 6 how many bytes the
--       payloads of one API key may take in all stores ('': any), 7 the key for which it counts ('' for none, and for a
--       result: its job's record names the key), 8 the payload; absent if the caller writes it, as Lua would copy it.
-- Returns {1, bytes of all payloads in Redis}, {0 (refused: no room), the same bytes}, or {2 (refused: the key has no
-- room), bytes of the payloads of the key, the key}.
local entry, ref, limit, size, share, owner, body = ARGV[1], ARGV[2], ARGV[4], tonumber(ARGV[5]), ARGV[6], ARGV[7], ARGV[8]
local job = string.match(entry, '^%S+ (%S+) %S+ r$')
if job then owner = read(job, 'ky')[1] or '' end
call('ZCARD', keys.PAYLOADS)
local total = counted()
-- A repeat, after a broken connection or with the payload.
local again = size > 0 and call('HEXISTS', keys.PAYLOAD_SIZES, ref) == 1
if size > 0 and not again then
  if in_redis(ref) and limit ~= '' and total + size > tonumber(limit) then return {0, whole(total)} end
  local used = owner ~= '' and share ~= '' and counted(owner)
  if used and used + size > tonumber(share) then return {2, whole(used), owner} end
end
if limit == '' then begin_with_removal(keys.PAYLOADS) end
local noted = try('ZADD', keys.PAYLOADS, whole(NOW_US + tonumber(ARGV[3])), entry)
if type(noted) == 'table' then
  -- Refused before anything was written; see jobs/submit.lua.
  if string.find(noted.err, 'OOM', 1, true) then noted.err = "OOM command not allowed when used memory > 'maxmemory'." end
  return redis.error_reply(noted.err)
end
if body then call('SET', keys.payload .. string.match(ref, ':(.*)'), body) end
if size > 0 and not again then count_payload(ref, ARGV[5], owner) end
return {1, whole(counted())}
