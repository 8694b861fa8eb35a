-- Forget jobs that have ended, before their result_ttl has passed. What waits, runs, or is a dead letter stays.
-- What lies of them in a payload store is found by the sweep, as no record names it. KEYS: none.
-- ARGV: 1 the API key whose jobs are known ('' for all; -: nobody's), then ids.
-- Returns {how many were forgotten}.
local names, forgotten = {}, {}
for i = 2, #ARGV do
  local state, dead, key = unpack(read(ARGV[i], 's', 'dl', 'ky'))
  local known = ARGV[1] == '' or ARGV[1] == (key or '-')
  if state and FINAL[state] and not dead and known and not forgotten[ARGV[i]] then
    forgotten[ARGV[i]] = true
    names[#names + 1] = JOB .. ARGV[i]
    names[#names + 1] = META .. ARGV[i]
  end
end
for k = 1, #names, CHUNK do
  redis.call('UNLINK', unpack(names, k, math.min(k + CHUNK - 1, #names)))
end
return {#names / 2}
