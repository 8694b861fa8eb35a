-- Forget jobs that have ended, before their result_ttl has passed. What waits, runs, or is a dead letter stays.
-- What lies of them in a payload store is found by the sweep, as no record names it. KEYS: none.
-- ARGV: 1 the API key whose jobs are known ('' for all; -: nobody's), then ids.
-- Returns {how many were forgotten}.
local owner, names, forgotten, n = ARGV[1], {}, {}, 0
for i = 2, #ARGV do
  local id = ARGV[i]
  local job = JOB .. id
  local r = owner == '' and try('HMGET', job, 's', 'dl') or try('HMGET', job, 's', 'dl', 'ky')
  local known = owner == '' or owner == (r[3] or '-')
  if FINAL[r[1] or ''] and not r[2] and known and not forgotten[id] then
    forgotten[id] = true
    names[n + 1], names[n + 2] = job, META .. id
    n = n + 2
  end
end
for k = 1, #names, CHUNK do
  call('UNLINK', unpack(names, k, math.min(k + CHUNK - 1, #names)))
end
return {#names / 2}
