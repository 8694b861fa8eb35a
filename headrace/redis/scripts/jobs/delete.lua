-- Forget jobs that have ended, before their result_ttl has passed. What waits, runs, or is a dead letter stays.
-- What lies of them in a payload store is found by the sweep, as no record names it. KEYS: none.
-- ARGV: 1 the API key whose jobs are known ('' for all; -: nobody's), then ids.
-- Returns {how many were forgotten}.
local owner, names, forgotten, n = ARGV[1], {}, {}, 0
for i = 2, #ARGV do
  local id = ARGV[i]
  local job = JOB .. id
  local state = try('HGET', job, 's')
  -- Only what has failed can be a dead letter, and most have not.
  local ended = FINAL[state] and (state == 's' or call('HEXISTS', job, 'dl') == 0)
  if ended and not forgotten[id] and (owner == '' or owner == (call('HGET', job, 'ky') or '-')) then
    forgotten[id] = true
    names[n + 1], names[n + 2] = job, META .. id
    n = n + 2
  end
end
for k = 1, #names, CHUNK do
  call('UNLINK', unpack(names, k, math.min(k + CHUNK - 1, #names)))
end
return {#names / 2}
