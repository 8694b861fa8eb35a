-- @include finish
-- Give back what one incarnation of a worker holds of one queue, except what it says that it knows.
-- For a worker that was seen to die, and for one whose claim was answered into a broken connection.
-- KEYS: the queue's. ARGV: 1 queue, 2 mode, 3 losses, 4 owner, then tokens to keep. Returns how many.
check_types(true)
local keep, lost = {}, {}
for i = 5, #ARGV do keep[ARGV[i]] = true end
for _, id in ipairs(redis.call('ZRANGE', KEYS[5], 0, -1)) do
  local owner, token, state = unpack(read(id, 'o', 't', 's'))
  if owner == ARGV[4] and state == 'r' and not keep[token] then
    lost[#lost + 1] = {id = id, token = tonumber(token)}
  end
end
for _, c in ipairs(latest_first(lost)) do give_back(c.id, ARGV[2], ARGV[3], ARGV[1]) end
return #lost
