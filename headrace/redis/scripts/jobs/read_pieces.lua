-- Read the logs of jobs behind an index. KEYS: none. ARGV: 1 how many entries at most, then per log: id, index.
-- Returns per log a flat list: index of an entry's last piece, its JSON array ('' for a restart mark), and so on.
local answer = {}
for i = 2, #ARGV, 2 do
  local found = try('XRANGE', PIECES .. ARGV[i], '(' .. ARGV[i + 1] .. '-0', '+', 'COUNT', ARGV[1])
  local flat = {}
  if not found.err then
    for n, entry in ipairs(found) do
      flat[2 * n - 1], flat[2 * n] = string.match(entry[1], '^%d+'), entry[2][2]
    end
  end
  answer[#answer + 1] = flat
end
return answer
