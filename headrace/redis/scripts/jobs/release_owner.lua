-- @include release
-- Release the jobs of one queue that one incarnation of a worker has leased, except those whose tokens it names.
-- For a worker that died (mode lost), and for a worker that lost the reply to a claim with its connection (free).
-- KEYS: the queue's. ARGV: 1 queue, 2 mode, 3 losses (see lib/release.lua), 4 owner, then tokens to keep. Returns how many
-- jobs it released.
check_types(true)
local keep, lost = {}, {}
for i = 5, #ARGV do keep[ARGV[i]] = true end
for _, id in ipairs(call('ZRANGE', KEYS[5], 0, -1)) do
  local owner, token, state = unpack(read(id, 'o', 't', 's'))
  if owner == ARGV[4] and state == 'r' and not keep[token] then
    lost[#lost + 1] = {id = id, token = tonumber(token)}
  end
end
for _, c in ipairs(latest_first(lost)) do release(c.id, ARGV[2], ARGV[3], ARGV[1], WITH_WORKER) end
return #lost
