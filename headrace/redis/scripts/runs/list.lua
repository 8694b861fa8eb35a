-- List the runs of an API key, the last to report first. KEYS: none. ARGV: 1 the API key (-: none), 2 how many at most.
-- Returns their ids. Runs that an older version has saved are in the list of all keys alone.
local last, found, own = tonumber(ARGV[2]) - 1, {}, {}
local function add(id, at) found[#found + 1] = {id, tonumber(at)} end
local ids = redis.call('ZREVRANGE', keys.runs_of .. ARGV[1], 0, last, 'WITHSCORES')
for i = 1, #ids, 2 do
  own[ids[i]] = true
  add(ids[i], ids[i + 1])
end
local all = redis.call('ZREVRANGE', keys.RUNS, 0, last, 'WITHSCORES')
for i = 1, #all, 2 do
  if not own[all[i]] and try('HGET', keys.run .. all[i], 'ky') == ARGV[1] then add(all[i], all[i + 1]) end
end
table.sort(found, function(a, b) return a[2] > b[2] end)
local answer = {}
for i = 1, math.min(#found, last + 1) do answer[i] = found[i][1] end
return answer
